"""How much memory a load needs, and how much there is."""

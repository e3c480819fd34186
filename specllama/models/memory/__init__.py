"""The memory that models need, and the memory that the machine has."""

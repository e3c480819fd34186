"""Whether a draft can propose tokens for a target: vocabularies, the pair check, notes on a pair."""

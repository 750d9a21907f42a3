"""Draftport: drafting metadata over REST, drafter hidden states without a copy."""

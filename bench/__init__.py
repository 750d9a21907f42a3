"""What the README's figures come from: ratios, measured in one run."""

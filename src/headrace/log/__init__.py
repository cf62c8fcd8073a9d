"""The storage kernel: one journal, tails, sealed segments, and the folds that stand on them."""

"""docs/format.md is true: the golden dataset, and a reader written from that page alone."""

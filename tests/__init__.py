"""The tests: a folder for each part of the package, and some for what holds across it."""

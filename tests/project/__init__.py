"""The files around the package: documents, examples, benchmarks, layers, pins."""

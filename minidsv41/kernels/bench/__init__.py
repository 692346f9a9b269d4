"""What each kernel is measured on: one file an operation, each with its CASES, and the harness that times them."""

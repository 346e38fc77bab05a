"""The page `docs/explanation/how-fast.md`, its charts, and the tables in `benchmarks/results`, from the samples."""

"""Logic over the store that engine and operations share: parsed definitions, inputs of a plan, guarded edits."""

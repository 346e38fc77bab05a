"""The reference worker: takes dispatched runs from a broker, does them, and reports. It has no database of its own."""

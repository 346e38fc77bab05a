"""The reference worker: takes dispatched runs from a broker, executes them and reports. It needs no database."""

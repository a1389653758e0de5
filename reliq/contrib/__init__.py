"""What needs another package, used only where that package is there."""

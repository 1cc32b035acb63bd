"""The two APIs that clients speak, each as pure functions over decoded JSON."""

"""Content on its way: uploads and downloads that go on after an interruption, and open files."""

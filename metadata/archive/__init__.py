"""What is inside of project exports: zip files, and the manifest in them."""

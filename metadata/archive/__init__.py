"""Read project exports: zip files, and the manifest in them."""

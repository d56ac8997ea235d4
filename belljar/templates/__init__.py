"""From a recipe to a template: recipe.py (what), kernel.py and rootfs.py (images), bake.py (boot, warm up, save)."""

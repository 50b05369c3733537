"""Read the recipe as rattler-build does and print what it would build: ``pip install py-rattler-build``, then

    python conda/check.py

Nothing is built, and no channel is asked.  An error of the recipe is an exception.
"""

from pathlib import Path

from rattler_build import Stage0Recipe


def main() -> None:
    recipe = Stage0Recipe.from_file(Path(__file__).with_name("recipe.yaml"))
    for variant in recipe.render():
        package, requirements = variant.recipe.package, variant.recipe.requirements
        print(package.name, package.version)
        for line in requirements.run:
            print(f"  {line}")


if __name__ == "__main__":
    main()

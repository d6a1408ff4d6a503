"""What every Python kernel of the interpreter begins with: the data of charts and tables beside their pictures, and images."""


def _cofferdam_formats():
    import sys

    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    shell = get_ipython()  # noqa: F821 (a name of IPython)

    def add(kind, types, data_of):
        class Formatter(BaseFormatter):
            """Knows its types by name: a registry would be emptied when matplotlib is configured."""

            format_type = Unicode(kind)
            print_method = ObjectName("_repr_" + kind.replace("/", "_") + "_")

            def __call__(self, value):
                names = {(one.__module__, one.__name__) for one in type(value).__mro__}
                if not names & types:
                    return None
                try:
                    return data_of(value) or None
                except Exception as error:  # a chart without data of its own is a picture still
                    print(f"no data of {type(value).__name__}: {error}", file=sys.__stderr__)
                    return None

        shell.display_formatter.formatters[kind] = Formatter(parent=shell.display_formatter)

    def chart(figure):
        from e2b_charts import chart_figure_to_dict

        return chart_figure_to_dict(figure)

    def table(frame):
        # Rows beyond these are data for a file, not for an answer.
        return frame.head(1_000).to_dict(orient="list")

    add("e2b/chart", {("matplotlib.figure", "Figure")}, chart)
    # Where the class says that it lives depends on the version of pandas.
    add("e2b/data", {("pandas", "DataFrame"), ("pandas.core.frame", "DataFrame")}, table)


_cofferdam_formats()
del _cofferdam_formats


def _cofferdam_images():
    """An image that is saved under a name is shown as well, as with E2B; a viewer of images is never started. Both once
    Pillow is loaded, which most kernels never do."""
    import importlib.util
    import sys

    def saved(module):
        from IPython.display import display

        save = module.Image.save

        def shown(image, fp, format=None, **options):
            if isinstance(fp, str):
                display(image)
            save(image, fp, format, **options)

        module.Image.save = shown

    def viewed(module):
        module.UnixViewer.show_file = lambda self, path, **options: 0

    hooks = {"PIL.Image": saved, "PIL.ImageShow": viewed}

    class Finder:
        """Finds these modules as ever, and changes them once they are loaded."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            hook = hooks.pop(name, None)
            spec = importlib.util.find_spec(name) if hook else None
            if spec is None or spec.loader is None:
                return None
            execute = spec.loader.exec_module

            def executed(module):
                execute(module)
                hook(module)

            spec.loader.exec_module = executed
            return spec

    for name in list(hooks):
        if name in sys.modules:
            hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, Finder)


_cofferdam_images()
del _cofferdam_images

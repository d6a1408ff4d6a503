"""What every Python kernel of the interpreter begins with: the data of charts and tables, beside their pictures."""


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

c = get_config()  # noqa: F821 (a name of IPython's configuration)
c.IPKernelApp.exec_files = ["/usr/local/lib/interpreter/startup.py"]
# A history would be a file in the user's home, and nobody reads it.
c.HistoryManager.enabled = False

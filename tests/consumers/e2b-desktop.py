"""e2b-desktop: a screen in a sandbox. Its template is E2B's own; what follows holds where there is one of this name."""
from e2b_desktop import Sandbox

from checks import check, done

desktop = Sandbox.create(timeout=120)
try:
    check("a command", desktop.commands.run("echo $((6 * 7))").stdout == "42\n")
    check("a size", desktop.get_screen_size() == (1024, 768))
    check("a picture", bytes(desktop.screenshot()).startswith(b"\x89PNG"))
    desktop.move_mouse(100, 200)
    check("a mouse", desktop.get_cursor_position() == (100, 200))
finally:
    desktop.kill()
done()

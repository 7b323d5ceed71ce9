"""A program in a terminal of its own: keys go in, and what stands on the screen can be looked at."""

import fcntl
import os
import pty
import signal
import struct
import termios
import threading

import pyte

from stage import Failed

ROWS, COLUMNS = 45, 110


class Terminal:
    def __init__(self, command, env, cwd):
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.changed, self.over = threading.Condition(), False
        self.pid, self.keyboard = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                os.execvpe(command[0], command, {**env, "TERM": "xterm-256color"})
            finally:
                os._exit(127)
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        # A program may ask its terminal what it is and where the cursor stands.
        self.screen.write_process_input = lambda text: os.write(self.keyboard, text.encode())
        threading.Thread(target=self._show, daemon=True).start()

    def _show(self):
        while True:
            try:
                data = os.read(self.keyboard, 65536)
            except OSError:
                data = b""
            with self.changed:
                if data:
                    self.stream.feed(data)
                self.over = not data
                self.changed.notify_all()
            if not data:
                return

    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def keys(self, text):
        os.write(self.keyboard, text.encode())

    def shows(self, is_there, what, seconds=120):
        """Waits until the screen shows something; returns the screen."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.over or is_there(self.text()), seconds) or not is_there(self.text()):
                raise Failed(f"the screen does not show {what}:\n{self.text()}")
            return self.text()

    def ends(self, seconds=15):
        """Waits for the program's end; its exit code."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.over, seconds):
                raise Failed(f"it did not end:\n{self.text()}")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # It has ended, and somebody has noticed.

"""The small ops that a layer needs beside attention and routed experts."""

//! What scripts of a recipe find around them: ids, sockets, names, file systems, and what becomes of programs that they leave running.

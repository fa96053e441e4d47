//! The forms in which recipes come: names of descriptions, encodings, archives of other systems, links.

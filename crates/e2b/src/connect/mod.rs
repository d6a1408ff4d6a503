//! The Connect protocol over HTTP/1.1, as far as envd's clients speak it: JSON or protobuf, uncompressed.

pub(crate) mod content_type;
pub(crate) mod fault;
pub(crate) mod frames;
pub(crate) mod json_schema;
pub(crate) mod message;
pub(crate) mod pieces;
pub(crate) mod protobuf;
pub(crate) mod reply;
pub(crate) mod schema;

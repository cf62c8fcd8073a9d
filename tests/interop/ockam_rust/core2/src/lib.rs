pub use std::{error, io};

//! What columns hold.

use dtrain_common::choices;

choices! {
    /// The kinds of cells of a field's columns.
    ColumnKind {
        Image = "image": "The path of an image; several columns are a list of images.",
        Mask = "mask": "The path of a mask.",
        Map = "map": "The path of a map.",
        Class = "class": "The name of a class.",
        Classes = "classes": "The names of any number of classes, with `|` between them.",
        Numbers = "numbers": "Numbers, one in each column.",
        Text = "text": "A text; two columns are a prompt and its answer, which alone is learnt.",
        Chat = "chat": "Messages as JSON; what the assistant says is learnt.",
    }
}

impl ColumnKind {
    /// Returns whether the cells become tokens.
    pub fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Chat)
    }

    /// Returns whether the cells are inputs of a network, never its target alone.
    pub fn is_input(self) -> bool {
        matches!(self, Self::Image | Self::Numbers) || self.is_text()
    }
}

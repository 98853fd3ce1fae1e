//! The settings of `[data]` and `[model]` that are one of a few words.

use dtrain_common::choices;

choices! {
    /// How a micro-step is submitted to a GPU.
    Compile {
        Off = "off": "Kernel by kernel.",
        Graph = "graph": "As one graph, captured once and then replayed.",
    }

    /// The learning target of a sample.
    Target {
        Class = "class": "The class of an image: the name of its folder.",
        Mask = "mask": "The class of each pixel of an image, from a mask.",
        Vector = "vector": "Numbers for an image, from a row of a table.",
        Map = "map": "A number for each pixel of an image, from a second image.",
        Classes = "classes": "Any number of classes of an image, from a row of a table.",
        Tokens = "tokens": "The next token of a text.",
    }

    /// Which threshold of a prediction a figure takes.
    Threshold {
        Mean = "mean": "All 256, and their mean.",
        Max = "max": "All 256, and the largest value.",
        Adaptive = "adaptive": "Twice the mean of each prediction.",
    }

    /// How the values that micro-batches give to a buffer are joined.
    Join {
        Mean = "mean": "The mean of the changes, weighted by samples: averages, centres.",
        Append = "append": "The rows of all samples go to the queue, in the order of the step.",
        Last = "last": "The value after the step's last sample.",
    }

    /// The meaning of a mask's values.
    Masks {
        Index = "index": "The value of a pixel is its class; of a palette image, the palette's index.",
        Binary = "binary": "Zero is class 0 and everything else class 1.",
        Threshold = "threshold": "A brightness above `mask_threshold` is class 1, any other class 0.",
        Colors = "colors": "The colour of a pixel is its class, by `mask_colors`.",
    }

    /// What becomes of images without annotations.
    Unannotated {
        Background = "background": "Their masks are background.",
        LeaveOut = "leave-out": "They are no samples.",
        Error = "error": "They are an error.",
    }

    /// How images are brought to the network's size.
    Resize {
        Crop = "crop": "The shorter side is scaled to it, and the middle square is cut out.",
        Stretch = "stretch": "Both sides are scaled to it.",
        None = "none": "Not at all: all images have the same size, and the network takes it.",
    }

    /// How the pixels of a resized image are interpolated.
    Interpolation {
        Bilinear = "bilinear": "From two pixels on each side.",
        Bicubic = "bicubic": "From four pixels on each side.",
    }

    /// The pixels that are decoded of an image.
    Decode {
        Exact = "exact": "Those of the file.",
        Scaled = "scaled": "Of JPEG files a half, a quarter or an eighth of each side, where that still is the network's size.",
    }

    /// The orientation in which images are used.
    Orientation {
        Stored = "stored": "As the pixels are stored, whatever the file's EXIF data states.",
        Exif = "exif": "Turned as the file's EXIF data states.",
    }

    /// Random changes to training samples.
    Augment {
        None = "none": "None.",
        Flip = "flip": "Half of the images are mirrored left to right.",
        CropFlip = "crop-flip": "Moved by up to an eighth of the side over black, then mirrored as by `flip`.",
        ResizedCropFlip = "resized-crop-flip": "A random part, scaled to the network's size, then mirrored as by `flip`.",
        Shift = "shift": "Windows of text begin at a random place.",
    }

    /// The type of the numbers in a token file.
    TokenType {
        Uint16 = "uint16": "Two bytes, little-endian, for vocabularies of up to 65,536.",
        Uint32 = "uint32": "Four bytes, little-endian.",
    }

    /// What ends the cells of a table.
    Separator {
        Auto = "auto": "The separator of the line of names; a line `sep=;` before it names the letter.",
        Comma = "comma": "A comma. Numbers have decimal points.",
        Semicolon = "semicolon": "A semicolon. Numbers have decimal points or decimal commas.",
        Tab = "tab": "A tab. Numbers have decimal points or decimal commas.",
        Bar = "bar": "`|`. Numbers have decimal points or decimal commas.",
    }

    /// The unit of text that is one document.
    Documents {
        None = "none": "The text is one sequence of tokens, cut into windows.",
        Files = "files": "A file.",
        Lines = "lines": "A line without its break; blank lines are no documents.",
        Index = "index": "A document of a token file's index, the `.idx` file beside it.",
    }

    /// The memory layout of images and convolution weights.
    MemoryFormat {
        Contiguous = "contiguous": "Channel by channel.",
        ChannelsLast = "channels-last": "Pixel by pixel.",
    }

    /// The tensors that a file of initial weights must have.
    WeightsMode {
        FineTune = "fine-tune": "Every tensor, except a head for another number of classes.",
        Strict = "strict": "Every tensor.",
        Partial = "partial": "The tensors that match by name and shape.",
    }
}

impl Separator {
    /// Returns the letter; none if the table tells.
    pub fn letter(self) -> Option<char> {
        match self {
            Self::Auto => None,
            Self::Comma => Some(','),
            Self::Semicolon => Some(';'),
            Self::Tab => Some('\t'),
            Self::Bar => Some('|'),
        }
    }
}

/// A value of a configuration file and the line it starts on.
struct YAMLNode: Sendable, Equatable {
    /// A member of a mapping, in the order of the file.
    struct Member: Sendable, Equatable {
        var key: String
        var value: YAMLNode
    }

    indirect enum Content: Sendable, Equatable {
        /// Any scalar as it is written; which type it must have, the setting decides.
        case scalar(String)
        case null
        case sequence([YAMLNode])
        case mapping([Member])
    }

    var content: Content
    /// From 1.
    var line: Int
}

/// What in a configuration file can't be read.
struct YAMLError: Error, Sendable, Equatable {
    var line: Int
    var cause: String
}

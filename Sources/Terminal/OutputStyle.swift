import Glibc

/// What a stream can show: a terminal of some width, with or without colour, or a pipe.
package struct OutputStyle: Sendable, Equatable {
    /// Columns to fit into; nil for a pipe or file, where nothing is cut.
    package var width: Int?
    /// Whether escape sequences for colour are written.
    package var usesColor: Bool
    /// Whether a line can be drawn anew in its place.
    package var redrawsLines: Bool

    /// A pipe or a file: plain and never cut.
    package static let plain = OutputStyle(width: nil, usesColor: false)

    /// A style of this width and colour; a terminal redraws lines unless said otherwise.
    package init(width: Int?, usesColor: Bool, redrawsLines: Bool = true) {
        self.width = width
        self.usesColor = usesColor
        self.redrawsLines = width != nil && redrawsLines
    }

    /// The style of a stream.
    ///
    /// Colour is for terminals only, never with `NO_COLOR` (https://no-color.org) or `TERM=dumb`; nor does such a terminal
    /// redraw lines. The width is the terminal's own, else `COLUMNS`, else 80.
    package init(isTerminal: Bool, terminalColumns: Int?, environment: [String: String]) {
        guard isTerminal else {
            self = .plain
            return
        }
        let columns = terminalColumns ?? environment["COLUMNS"].flatMap { Int($0) } ?? 80
        let isDumb = environment["TERM"] == "dumb"
        let refusesColor = environment["NO_COLOR"]?.isEmpty == false || isDumb
        self.init(width: max(40, columns), usesColor: !refusesColor, redrawsLines: !isDumb)
    }

    /// The style of standard output.
    package static func ofStandardOutput(environment: [String: String]) -> OutputStyle {
        OutputStyle(of: STDOUT_FILENO, environment: environment)
    }

    /// The style of standard error.
    package static func ofStandardError(environment: [String: String]) -> OutputStyle {
        OutputStyle(of: STDERR_FILENO, environment: environment)
    }

    private init(of descriptor: Int32, environment: [String: String]) {
        var size = winsize()
        let hasSize = ioctl(descriptor, UInt(TIOCGWINSZ), &size) == 0 && size.ws_col > 0
        self.init(
            isTerminal: isatty(descriptor) == 1,
            terminalColumns: hasSize ? Int(size.ws_col) : nil,
            environment: environment
        )
    }

    /// The text in a colour, if this style has any.
    package func painted(_ text: String, _ color: Color) -> String {
        usesColor && !text.isEmpty ? "\u{1b}[\(color.rawValue)m\(text)\u{1b}[0m" : text
    }
}

/// The few colours in use, as SGR parameters.
package enum Color: Int, Sendable {
    /// Headings.
    case bold = 1
    /// What matters less.
    case faint = 2
    /// What failed or is dead.
    case red = 31
    /// What is fine.
    case green = 32
    /// What wants attention.
    case yellow = 33
}

import Glibc

/// The capabilities of an output stream: a terminal of some width, with or without colour, or a pipe.
package struct OutputStyle: Sendable, Equatable {
    /// The columns of the terminal; `nil` for a pipe or file, where nothing is cut.
    package var width: Int?
    package var usesColor: Bool
    package var redrawsLines: Bool

    package static let plain = OutputStyle(width: nil, usesColor: false)

    /// The same style, for output whose lines may be longer than the terminal's.
    package var uncut: OutputStyle { OutputStyle(width: nil, usesColor: usesColor) }

    /// - Parameter redrawsLines: has no effect without a width.
    package init(width: Int?, usesColor: Bool, redrawsLines: Bool = true) {
        self.width = width
        self.usesColor = usesColor
        self.redrawsLines = width != nil && redrawsLines
    }

    /// Only terminals have colour, and not with `NO_COLOR` (https://no-color.org) or `TERM=dumb`. A dumb terminal does not
    /// redraw lines. The width is the terminal's, else `COLUMNS`, else 80.
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

    init(of descriptor: Int32, environment: [String: String]) {
        var size = winsize()
        let hasSize = ioctl(descriptor, UInt(TIOCGWINSZ), &size) == 0 && size.ws_col > 0
        self.init(
            isTerminal: isatty(descriptor) == 1,
            terminalColumns: hasSize ? Int(size.ws_col) : nil,
            environment: environment
        )
    }

    package func painted(_ text: String, _ color: Color) -> String {
        usesColor && !text.isEmpty ? "\u{1b}[\(color.rawValue)m\(text)\u{1b}[0m" : text
    }
}

/// The colours in use. The raw values are SGR parameters.
package enum Color: Int, Sendable {
    case bold = 1
    case faint = 2
    case red = 31
    case green = 32
    case yellow = 33
}

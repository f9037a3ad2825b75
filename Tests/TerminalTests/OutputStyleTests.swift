import Terminal
import Testing

@Suite("The style of a stream")
struct OutputStyleTests {
    @Test("A terminal has colour and a width.")
    func terminal() {
        let style = OutputStyle(isTerminal: true, terminalColumns: 132, environment: ["TERM": "xterm"])
        #expect(style == OutputStyle(width: 132, usesColor: true))
        #expect(style.painted("x", .red) == "\u{1b}[31mx\u{1b}[0m")
    }

    @Test("NO_COLOR and a dumb terminal disable colour.", arguments: [["NO_COLOR": "1"], ["TERM": "dumb"]])
    func noColor(environment: [String: String]) {
        #expect(!OutputStyle(isTerminal: true, terminalColumns: 80, environment: environment).usesColor)
    }

    @Test("Only a terminal that is not dumb redraws lines.")
    func redrawing() {
        #expect(OutputStyle(isTerminal: true, terminalColumns: 80, environment: ["NO_COLOR": "1"]).redrawsLines)
        #expect(!OutputStyle(isTerminal: true, terminalColumns: 80, environment: ["TERM": "dumb"]).redrawsLines)
        #expect(!OutputStyle(isTerminal: false, terminalColumns: 80, environment: [:]).redrawsLines)
        #expect(!OutputStyle.plain.redrawsLines)
        for redraws in [true, false] {
            let style = OutputStyle(width: 80, usesColor: false, redrawsLines: redraws)
            let console = Console(style: style, errorStyle: style, output: { _ in }, error: { _ in })
            #expect(console.barWidth == (redraws ? 80 : nil))
        }
    }

    @Test("An empty NO_COLOR has no effect.")
    func emptyNoColor() {
        #expect(OutputStyle(isTerminal: true, terminalColumns: 80, environment: ["NO_COLOR": ""]).usesColor)
    }

    @Test("A pipe has no colour and no width in any environment.")
    func pipe() {
        let style = OutputStyle(isTerminal: false, terminalColumns: nil, environment: ["COLUMNS": "100"])
        #expect(style == .plain)
        #expect(style.painted("x", .red) == "x")
    }

    @Test("An unknown width is 80 columns, and the least width is 40.")
    func width() {
        #expect(OutputStyle(isTerminal: true, terminalColumns: nil, environment: [:]).width == 80)
        #expect(OutputStyle(isTerminal: true, terminalColumns: nil, environment: ["COLUMNS": "100"]).width == 100)
        #expect(OutputStyle(isTerminal: true, terminalColumns: 10, environment: [:]).width == 40)
    }
}

@Suite("The failure of a command")
struct CommandFailureTests {
    @Test("A failure is one line with any text as its cause.")
    func oneLine() {
        let failure = CommandFailure(.failed, "first\nsecond\u{1b}[31m")
        #expect(failure.description == "first second\\u{1b}[31m")
    }

    @Test("The exit codes match the contract.")
    func codes() {
        let all: [CommandStatus] = [
            .done, .failed, .partlyFailed, .nothingMatched, .usage, .unavailable, .configuration,
        ]
        #expect(all.map(\.rawValue) == [0, 1, 2, 4, 64, 69, 78])
    }
}

/// The events of a connection: its bytes, cut into reads, with other events in between.
///
/// An input consists of the bytes themselves. 0xFF, which no well-formed head contains, ends a read; the byte after it
/// selects an event, by default none.
struct ConnectionScript {
    enum Step: Equatable {
        case read(ArraySlice<UInt8>)
        /// A response is delivered.
        case answerOldest
        case answerYoungest
        case unavailable
        /// The peer closes its sending side.
        case peerFinishes
        case peerVanishes
        /// All deadlines except the idle deadline have passed.
        case timePasses
        /// The server shuts down.
        case drains
        /// The peer stops reading, and reads again.
        case stalls
        case resumes
    }

    private(set) var steps: [Step] = []

    init(_ input: [UInt8]) {
        var rest = input[...]
        while let mark = rest.firstIndex(of: 0xFF) {
            read(rest[..<mark])
            rest = rest[mark...].dropFirst()
            guard let letter = rest.popFirst() else { return }
            if let step = Self.step(letter) { steps.append(step) }
        }
        read(rest)
    }

    /// True if all steps are reads, so that the cuts must not matter.
    var isPlain: Bool {
        steps.allSatisfy { if case .read = $0 { true } else { false } }
    }

    var bytes: [UInt8] {
        steps.flatMap { step -> ArraySlice<UInt8> in if case .read(let bytes) = step { bytes } else { [] } }
    }

    private mutating func read(_ bytes: ArraySlice<UInt8>) {
        if !bytes.isEmpty { steps.append(.read(bytes)) }
    }

    private static func step(_ letter: UInt8) -> Step? {
        switch letter {
        case UInt8(ascii: "a"): .answerOldest
        case UInt8(ascii: "y"): .answerYoungest
        case UInt8(ascii: "u"): .unavailable
        case UInt8(ascii: "f"): .peerFinishes
        case UInt8(ascii: "v"): .peerVanishes
        case UInt8(ascii: "t"): .timePasses
        case UInt8(ascii: "d"): .drains
        case UInt8(ascii: "s"): .stalls
        case UInt8(ascii: "r"): .resumes
        default: nil
        }
    }
}

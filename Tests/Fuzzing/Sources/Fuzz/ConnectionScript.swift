/// What happens to a connection: its bytes, cut into reads, with everything else that may happen in between.
///
/// An input is the bytes themselves. 0xFF, which is in no well-formed head, ends a read; the byte after it says what
/// happens then, nothing by default.
struct ConnectionScript {
    /// Something that happens.
    enum Step: Equatable {
        case read(ArraySlice<UInt8>)
        /// The intake answers.
        case answerOldest
        case answerYoungest
        case unavailable
        /// The peer sends nothing more.
        case peerFinishes
        case peerVanishes
        /// All deadlines except the idle ones have passed.
        case timePasses
        /// The service ends.
        case drains
        /// The peer takes no answers, and takes them again.
        case stalls
        case resumes
    }

    /// In this order.
    private(set) var steps: [Step] = []

    /// Reads a script.
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

    /// Nothing happens but reads, so that it can't matter how the bytes are cut.
    var isPlain: Bool {
        steps.allSatisfy { if case .read = $0 { true } else { false } }
    }

    /// All bytes that may arrive.
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

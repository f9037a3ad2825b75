import JOSE

/// Codes, access tokens and refresh tokens in Apple's format: a letter, 32 hexadecimal digits, `.0.`, a few letters that are
/// the same for one person, and 16 bytes as base64url.
enum OpaqueToken: String {
    case code = "c"
    case access = "a"
    case refresh = "r"

    /// - Parameter letters: of the person, as ``letters()`` chooses them.
    func random(_ letters: String) -> String {
        let digits = (0..<32).map { _ in String(Int.random(in: 0..<16), radix: 16) }.joined()
        return "\(rawValue)\(digits).0.\(letters).\(SimulatedEvent.randomID())"
    }

    /// Five lower-case letters.
    static func letters() -> String {
        String((0..<5).map { _ in "abcdefghijklmnopqrstuvwxyz".randomElement() ?? "a" })
    }
}

import AppleTokens
import JOSE
import Terminal

/// A token's header and claims for a reader, a line for each.
struct DecodedToken {
    private let members: [(name: String, value: String)]

    /// Decodes a token. Claims that aren't strict JSON stay in one piece.
    init(_ jws: CompactJWS) {
        let header = [("alg", CompactJWS.algorithm), ("kid", jws.keyID ?? "")]
        let claims: [(String, String)]
        if let payload = try? JSONValue(parsing: jws.payload), payload.members != nil {
            claims = Self.members(of: payload, within: "")
        } else {
            claims = [("payload", String(decoding: jws.payload, as: UTF8.self))]
        }
        members = (header + claims).map { (name: $0.0, value: $0.1) }
    }

    /// The lines, broken to fit.
    func lines(style: OutputStyle) -> [String] {
        let width = members.map { VisibleText.width(VisibleText.visible($0.name)) }.max() ?? 0
        return members.flatMap { name, value in
            Self.pieces(VisibleText.visible(value), of: style.width.map { max(20, $0 - width - 4) })
                .enumerated()
                .map { ($0 == 0 ? VisibleText.visible(name) : "").padding(to: width) + "  " + $1 }
        }
    }

    private static func members(of object: JSONValue, within path: String) -> [(String, String)] {
        (object.members ?? []).flatMap { member -> [(String, String)] in
            let name = path + member.name
            // Apple sends the events as JSON within a string.
            let inner = member.value.string.flatMap { try? JSONValue(parsing: Array($0.utf8)) } ?? member.value
            if member.name == "events", inner.members != nil { return members(of: inner, within: "events.") }
            return [(name, text(member.name, member.value))]
        }
    }

    private static func text(_ name: String, _ value: JSONValue) -> String {
        let text = value.string ?? value.compactText
        guard ["iat", "exp", "event_time"].contains(name), let number = value.integer else { return text }
        return "\(text) (\(WallTime(secondsOrMilliseconds: number).column) UTC)"
    }

    /// The text in pieces of at most so many columns.
    private static func pieces(_ text: String, of width: Int?) -> [String] {
        guard let width, VisibleText.width(text) > width else { return [text] }
        var pieces: [String] = []
        var (piece, columns) = ("", 0)
        for character in text {
            let more = VisibleText.width(String(character))
            if columns + more > width {
                pieces.append(piece)
                (piece, columns) = ("", 0)
            }
            piece.append(character)
            columns += more
        }
        return pieces + [piece]
    }
}

import Basics

/// Prepares untrusted text for a terminal: escapes control characters, measures and cuts.
package enum VisibleText {
    /// Escapes control and format characters as `\u{1b}`, so that no value can move the cursor or hide other text.
    package static func visible(_ text: String) -> String {
        guard text.unicodeScalars.contains(where: \.isInvisible) else { return text }
        var result = ""
        for scalar in text.unicodeScalars {
            if scalar.isInvisible {
                result += scalar == "\n" ? " " : "\\u{\(String(scalar.value, radix: 16))}"
            } else {
                result.unicodeScalars.append(scalar)
            }
        }
        return result
    }

    /// The number of columns that the text occupies.
    package static func width(_ text: String) -> Int {
        if text.utf8.allSatisfy({ $0 < 0x80 }) { return text.utf8.count }
        return text.reduce(0) { $0 + width($1) }
    }

    /// Cuts the text to `limit` columns; `…` marks the removed end.
    package static func cutAtEnd(_ text: String, to limit: Int) -> String {
        guard width(text) > limit else { return text }
        guard limit > 1 else { return limit == 1 ? "…" : "" }
        return String(prefix(of: text[...], columns: limit - 1)) + "…"
    }

    package static func cutAtStart(_ text: String, to limit: Int) -> String {
        String(cutAtEnd(String(text.reversed()), to: limit).reversed())
    }

    /// Escapes the text and breaks it at spaces into lines of at most `limit` columns; `nil` keeps it on one line.
    package static func wrapped(_ text: String, to limit: Int?) -> [String] {
        let text = visible(text)
        guard let limit, width(text) > limit else { return [text] }
        var lines: [String] = []
        var line = ""
        for word in text.split(separator: " ", omittingEmptySubsequences: false) {
            if !line.isEmpty, width(line) + 1 + width(String(word)) > limit {
                lines.append(line)
                line = String(word)
            } else {
                line += line.isEmpty ? String(word) : " " + word
            }
        }
        return lines + [line]
    }

    /// Splits the text into pieces of at most `limit` columns, which must be at least 2; `nil` keeps it in one piece.
    package static func split(_ text: String, every limit: Int?) -> [String] {
        guard let limit, width(text) > limit else { return [text] }
        var pieces: [String] = []
        var rest = text[...]
        while !rest.isEmpty {
            let piece = prefix(of: rest, columns: limit)
            pieces.append(String(piece))
            rest = rest[piece.endIndex...]
        }
        return pieces
    }

    private static func prefix(of text: Substring, columns: Int) -> Substring {
        var used = 0
        return text.prefix { character in
            used += width(character)
            return used <= columns
        }
    }

    /// The first scalar determines the width of a character; joined scalars add nothing.
    private static func width(_ character: Character) -> Int {
        guard let scalar = character.unicodeScalars.first else { return 0 }
        let isWide = scalar.properties.isEmojiPresentation || wide.contains { $0.contains(scalar.value) }
        return isWide ? 2 : 1
    }

    /// Characters of two columns that are not emoji: East Asian Width W and F (UAX #11, EastAsianWidth.txt). Emoji within
    /// a range and unassigned code points are not left out.
    private static let wide: [ClosedRange<UInt32>] = [
        0x1100...0x115f, 0x2329...0x232a, 0x2e80...0x303e, 0x3041...0x3247, 0x3250...0xa4c6, 0xa960...0xa97c,
        0xac00...0xd7a3, 0xf900...0xfaff, 0xfe10...0xfe19, 0xfe30...0xfe6b, 0xff01...0xff60, 0xffe0...0xffe6,
        0x16fe0...0x1b2fb, 0x1f200...0x1f2ff, 0x20000...0x3fffd,
    ]
}

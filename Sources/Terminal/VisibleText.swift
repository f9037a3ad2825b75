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

    /// Returns the number of columns that the text occupies.
    package static func width(_ text: String) -> Int {
        if text.utf8.allSatisfy({ $0 < 0x80 }) { return text.utf8.count }
        return text.reduce(0) { $0 + width($1) }
    }

    /// Cuts the text to `limit` columns; `…` marks the removed end.
    package static func cutAtEnd(_ text: String, to limit: Int) -> String {
        guard width(text) > limit else { return text }
        guard limit > 1 else { return limit == 1 ? "…" : "" }
        return String(prefix(of: text, columns: limit - 1)) + "…"
    }

    /// Cuts the text to `limit` columns; `…` marks the removed start.
    package static func cutAtStart(_ text: String, to limit: Int) -> String {
        String(cutAtEnd(String(text.reversed()), to: limit).reversed())
    }

    /// Cuts the text to `limit` columns; `…` marks the removed middle.
    package static func cutInMiddle(_ text: String, to limit: Int) -> String {
        guard width(text) > limit else { return text }
        guard limit > 2 else { return cutAtEnd(text, to: limit) }
        let tail = (limit - 1) / 2
        let end = String(prefix(of: String(text.reversed()), columns: tail).reversed())
        return String(prefix(of: text, columns: limit - 1 - tail)) + "…" + end
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

    private static func prefix(of text: String, columns: Int) -> Substring {
        var used = 0
        return text.prefix { character in
            used += width(character)
            return used <= columns
        }
    }

    /// The first scalar determines the width of a character; joined scalars add nothing.
    private static func width(_ character: Character) -> Int {
        guard let scalar = character.unicodeScalars.first else { return 0 }
        return isWide(scalar) ? 2 : 1
    }
}

extension VisibleText {
    /// True for characters of two columns: East Asian Width W and F, which include emoji (UAX #11, EastAsianWidth.txt).
    /// An unassigned code point counts like its neighbours.
    fileprivate static func isWide(_ scalar: Unicode.Scalar) -> Bool {
        wide.contains { $0.contains(scalar.value) }
    }

    private static let wide: [ClosedRange<UInt32>] = [
        0x1100...0x115f, 0x231a...0x231b, 0x2329...0x232a, 0x23e9...0x23ec, 0x23f0...0x23f0, 0x23f3...0x23f3,
        0x25fd...0x25fe, 0x2614...0x2615, 0x2648...0x2653, 0x267f...0x267f, 0x2693...0x2693, 0x26a1...0x26a1,
        0x26aa...0x26ab, 0x26bd...0x26be, 0x26c4...0x26c5, 0x26ce...0x26ce, 0x26d4...0x26d4, 0x26ea...0x26ea,
        0x26f2...0x26f3, 0x26f5...0x26f5, 0x26fa...0x26fa, 0x26fd...0x26fd, 0x2705...0x2705, 0x270a...0x270b,
        0x2728...0x2728, 0x274c...0x274c, 0x274e...0x274e, 0x2753...0x2755, 0x2757...0x2757, 0x2795...0x2797,
        0x27b0...0x27b0, 0x27bf...0x27bf, 0x2b1b...0x2b1c, 0x2b50...0x2b50, 0x2b55...0x2b55, 0x2e80...0x303e,
        0x3041...0x3247, 0x3250...0xa4c6, 0xa960...0xa97c, 0xac00...0xd7a3, 0xf900...0xfaff, 0xfe10...0xfe19,
        0xfe30...0xfe6b, 0xff01...0xff60, 0xffe0...0xffe6, 0x16fe0...0x1b2fb, 0x1f004...0x1f004, 0x1f0cf...0x1f0cf,
        0x1f18e...0x1f18e, 0x1f191...0x1f19a, 0x1f200...0x1f320, 0x1f32d...0x1f335, 0x1f337...0x1f37c,
        0x1f37e...0x1f393, 0x1f3a0...0x1f3ca, 0x1f3cf...0x1f3d3, 0x1f3e0...0x1f3f0, 0x1f3f4...0x1f3f4,
        0x1f3f8...0x1f43e, 0x1f440...0x1f440, 0x1f442...0x1f4fc, 0x1f4ff...0x1f53d, 0x1f54b...0x1f54e,
        0x1f550...0x1f567, 0x1f57a...0x1f57a, 0x1f595...0x1f596, 0x1f5a4...0x1f5a4, 0x1f5fb...0x1f64f,
        0x1f680...0x1f6c5, 0x1f6cc...0x1f6cc, 0x1f6d0...0x1f6d2, 0x1f6d5...0x1f6df, 0x1f6eb...0x1f6ec,
        0x1f6f4...0x1f6ff, 0x1f7e0...0x1f7f0, 0x1f90c...0x1f93a, 0x1f93c...0x1f945, 0x1f947...0x1f9ff,
        0x1fa70...0x1faff, 0x20000...0x3fffd,
    ]
}

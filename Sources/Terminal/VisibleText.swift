import Basics

/// Text from outside made fit for a terminal: no control character gets through, and its width is known.
package enum VisibleText {
    /// The text with control and format characters as `\u{1b}`, so that no value can move the cursor or hide another.
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

    /// How many columns the text takes.
    package static func width(_ text: String) -> Int {
        if text.utf8.allSatisfy({ $0 < 0x80 }) { return text.utf8.count }
        return text.reduce(0) { $0 + width($1) }
    }

    /// The text in at most `limit` columns, what is missing at its end marked with `…`.
    package static func cutAtEnd(_ text: String, to limit: Int) -> String {
        guard width(text) > limit else { return text }
        guard limit > 1 else { return limit == 1 ? "…" : "" }
        return String(prefix(of: text, columns: limit - 1)) + "…"
    }

    /// The text in at most `limit` columns, what is missing at its start marked with `…`.
    package static func cutAtStart(_ text: String, to limit: Int) -> String {
        String(cutAtEnd(String(text.reversed()), to: limit).reversed())
    }

    /// The text in at most `limit` columns, what is missing in its middle marked with `…`: for ids, whose ends tell
    /// them apart.
    package static func cutInMiddle(_ text: String, to limit: Int) -> String {
        guard width(text) > limit else { return text }
        guard limit > 2 else { return cutAtEnd(text, to: limit) }
        let tail = (limit - 1) / 2
        let end = String(prefix(of: String(text.reversed()), columns: tail).reversed())
        return String(prefix(of: text, columns: limit - 1 - tail)) + "…" + end
    }

    /// The text in lines of at most `limit` columns, broken at blanks; nil: in one line. Made visible first.
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

    /// By what it begins with: what joins that is of no width.
    private static func width(_ character: Character) -> Int {
        guard let scalar = character.unicodeScalars.first else { return 0 }
        return isWide(scalar) ? 2 : 1
    }
}

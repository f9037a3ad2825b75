/// Masks what must not be seen of a libpq connection string.
enum SecretMask {
    private static let mask = "****"
    private static let secrets: Set<String> = ["password", "sslpassword", "passwd"]

    /// The text with every password replaced; one that can't be read is masked whole.
    static func masked(conninfo text: String) -> String {
        if let scheme = text.firstRange(of: "://") {
            return String(text[..<scheme.upperBound]) + maskedURI(text[scheme.upperBound...])
        }
        return maskedKeywords(text)
    }

    private static func maskedURI(_ rest: Substring) -> String {
        // The last @ before the path ends the user part, because a password that was not encoded may hold others.
        let question = rest.firstIndex(of: "?") ?? rest.endIndex
        var authority = String(rest[..<question])
        if let at = authority.lastIndex(of: "@"), let colon = authority[..<at].firstIndex(of: ":") {
            authority.replaceSubrange(authority.index(after: colon)..<at, with: mask)
        }
        let query = rest[question...].dropFirst().split(separator: "&").map { parameter -> String in
            let name = parameter.prefix { $0 != "=" }
            return secrets.contains(name.lowercased()) ? "\(name)=\(mask)" : String(parameter)
        }
        return authority + (query.isEmpty ? "" : "?" + query.joined(separator: "&"))
    }

    private static func maskedKeywords(_ text: String) -> String {
        var shown: [String] = []
        var rest = text[...].drop(while: \.isWhitespace)
        while !rest.isEmpty {
            guard let equals = rest.firstIndex(of: "=") else { return mask }
            let name = rest[..<equals].filter { !$0.isWhitespace }
            rest = rest[rest.index(after: equals)...].drop(while: \.isWhitespace)
            let value = takeValue(from: &rest)
            shown.append("\(name)=\(secrets.contains(name.lowercased()) ? mask : value)")
            rest = rest.drop(while: \.isWhitespace)
        }
        return shown.joined(separator: " ")
    }

    private static func takeValue(from rest: inout Substring) -> String {
        let isQuoted = rest.first == "'"
        var value = ""
        if isQuoted { value.append(rest.removeFirst()) }
        while let character = rest.first, isQuoted || !character.isWhitespace {
            value.append(rest.removeFirst())
            if character == "\\", let escaped = rest.first {
                value.append(escaped)
                rest.removeFirst()
            } else if isQuoted, character == "'" {
                break
            }
        }
        return value
    }
}

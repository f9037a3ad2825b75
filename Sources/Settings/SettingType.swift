import AppleTokens
import Basics
import JOSE
import SignIn

/// How the text of a setting becomes its value, and how the text is printed.
struct SettingType: Sendable {
    /// The values that are allowed, in a few words of Markdown.
    let values: String
    let parse: @Sendable (String) throws(MalformedValue) -> any Sendable
    var redacted: @Sendable (String) -> String = { Redaction.redacted($0) }
    var takesList = false

    static let address = SettingType(values: "`host:port`", parse: HostAndPort.init(parsing:))
    static let urlPath = SettingType(values: "path", parse: ValueParser.urlPath)
    static let line = SettingType(values: "text", parse: ValueParser.line)
    static let conninfo = SettingType(
        values: "URI or keywords",
        parse: ValueParser.conninfo,
        redacted: SecretMask.masked(conninfo:)
    )

    /// A URL that names no user and no password.
    static let url = SettingType(
        values: "URL",
        parse: ValueParser.line,
        redacted: { $0.contains("@") || Redaction.holdsToken($0) ? Redaction.mask : $0 }
    )

    static let issuer = SettingType(
        values: "URL",
        parse: { text throws(MalformedValue) in
            let text = try ValueParser.line(text)
            guard text.hasPrefix("https://") || text.hasPrefix("http://"), !text.contains(" ") else {
                throw MalformedValue(advice: "write a URL such as https://appleid.apple.com")
            }
            return text
        },
        redacted: url.redacted
    )

    static let proxy = SettingType(values: "URL", parse: ValueParser.proxy, redacted: url.redacted)

    static let apps = SettingType(
        values: "list",
        parse: { text throws(MalformedValue) in
            do throws(AudienceMapError) {
                return try AudienceMap(parsing: text)
            } catch {
                let plainAdvice = "write TEAMID/primary.app.id, such as A1B2C3D4E5/com.example.app"
                throw MalformedValue(advice: error.description, plainAdvice: plainAdvice)
            }
        },
        takesList: true
    )

    static let appleKeys = SettingType(
        values: "list",
        parse: { text throws(MalformedValue) in
            do throws(AppleKeysError) {
                return try AppleKeys(parsing: text)
            } catch {
                throw MalformedValue(advice: error.description)
            }
        },
        takesList: true
    )

    /// Printed with the names of the keys only.
    static let sealingKeys = SettingType(
        values: "lines",
        parse: { text throws(MalformedValue) in
            do throws(JOSEError) {
                return try SealingKeys(parsing: text)
            } catch {
                throw MalformedValue(advice: error.message)
            }
        },
        redacted: { text in
            // A text that is no ring may have a key where a name is expected.
            guard let keys = try? SealingKeys(parsing: text) else { return Redaction.mask }
            return keys.names.map { "\($0):\(Redaction.mask)" }.joined(separator: ",")
        },
        takesList: true
    )

    static let applicationAddress = SettingType(
        values: "`unix:/path` or `host:port`",
        parse: ApplicationAddress.init(parsing:)
    )

    /// Permissions in octal, with which the owner can read and write.
    static let fileMode = SettingType(values: "0600 to 0777") { text throws(MalformedValue) in
        guard 3...4 ~= text.utf8.count, let mode = UInt16(text, radix: 8), 0o600...0o777 ~= mode else {
            throw MalformedValue(advice: "write permissions in octal from 0600 to 0777, such as 0660")
        }
        return mode
    }

    /// Printed with the names of the callers only.
    static let callers = SettingType(
        values: "lines",
        parse: { text throws(MalformedValue) in
            do throws(CallerDirectoryError) {
                return try CallerDirectory(parsing: text)
            } catch {
                throw MalformedValue(advice: error.description)
            }
        },
        redacted: { text in
            // A text that is no directory may have a token where a name is expected.
            guard let callers = try? CallerDirectory(parsing: text) else { return Redaction.mask }
            return callers.names.map { "\($0) \(Redaction.mask)" }.joined(separator: ",")
        },
        takesList: true
    )

    static let boolean = SettingType(values: "`true` or `false`") { text throws(MalformedValue) in
        guard let value = Bool(text.lowercased()) else { throw MalformedValue(advice: "write true or false") }
        return value
    }

    static let addressRanges = SettingType(
        values: "list",
        parse: { text throws(MalformedValue) in
            let parts = text.split(separator: ",").map { $0.trimmingPrefix(while: \.isWhitespace) }
            let ranges = parts.compactMap { AddressRange($0) }
            guard ranges.count == parts.count, !ranges.isEmpty else {
                throw MalformedValue(
                    advice:
                        "write ranges of addresses separated by commas, without bits after the prefix: 10.1.0.0/16, not "
                        + "10.1.2.3/16"
                )
            }
            return ranges
        },
        takesList: true
    )

    static func duration(_ range: ClosedRange<Duration>) -> SettingType {
        SettingType(values: "\(range.lowerBound.short) to \(range.upperBound.short)") { text throws(MalformedValue) in
            try ValueParser.duration(text, in: range)
        }
    }

    static func count(_ range: ClosedRange<Int>) -> SettingType {
        SettingType(values: "\(range.lowerBound) to \(range.upperBound)") { text throws(MalformedValue) in
            try ValueParser.integer(text, in: range)
        }
    }

    static func size(_ range: ClosedRange<Int64>) -> SettingType {
        SettingType(values: "size") { text throws(MalformedValue) in try ValueParser.size(text, in: range) }
    }

    static func word<Word>(_ type: Word.Type) -> SettingType
    where Word: RawRepresentable<String> & CaseIterable & Sendable {
        SettingType(values: "word") { text throws(MalformedValue) in
            guard let word = Word(rawValue: text.lowercased()) else {
                throw MalformedValue(advice: "write one of " + Word.allCases.map(\.rawValue).joined(separator: ", "))
            }
            return word
        }
    }
}

struct MalformedValue: Error, Equatable {
    /// The next step: `write a duration such as 1h or 60s`.
    let advice: String
    /// Advice for a value that must not be printed, if `advice` quotes the value or the value may hold a password.
    var plainAdvice: String?
}

enum ValueParser {
    /// Whole numbers with a unit, one or several: `1h`, `1h30m`, `500ms`, `400d`.
    static func duration(_ text: String, in range: ClosedRange<Duration>) throws(MalformedValue) -> Duration {
        let malformed = MalformedValue(advice: "write a duration such as 500ms, 60s, 5m, 1h or 400d")
        let units: [Substring: Int64] = ["ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000]
        var rest = text[...]
        var milliseconds: Int64 = 0
        repeat {
            guard let part = amount(from: &rest, units) else { throw malformed }
            let (sum, overflow) = milliseconds.addingReportingOverflow(part)
            guard !overflow else { throw malformed }
            milliseconds = sum
        } while !rest.isEmpty
        let duration = Duration.milliseconds(milliseconds)
        guard range.contains(duration) else {
            throw MalformedValue(advice: "write a duration from \(range.lowerBound.short) to \(range.upperBound.short)")
        }
        return duration
    }

    static func size(_ text: String, in range: ClosedRange<Int64> = 1...Int64.max) throws(MalformedValue) -> Int64 {
        let units: [Substring: Int64] = [
            "": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
            "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000, "tb": 1_000_000_000_000,
        ]
        var rest = text.lowercased()[...]
        guard let size = amount(from: &rest, units), rest.isEmpty, size > 0 else {
            throw MalformedValue(advice: "write a size such as 512MiB or 1GiB")
        }
        guard range.contains(size) else {
            throw MalformedValue(
                advice: "write a size from \(range.lowerBound >> 10)KiB to \(range.upperBound >> 30)GiB"
            )
        }
        return size
    }

    static func integer(_ text: String, in range: ClosedRange<Int>) throws(MalformedValue) -> Int {
        guard !text.isEmpty, text.allSatisfy(isDigit), let value = Int(text), range.contains(value) else {
            throw MalformedValue(advice: "write a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
        return value
    }

    static func urlPath(_ text: String) throws(MalformedValue) -> String {
        let isPath = text.utf8.allSatisfy { byte in
            byte > 0x20 && byte < 0x7f && byte != UInt8(ascii: "?") && byte != UInt8(ascii: "#")
        }
        guard text.hasPrefix("/"), isPath else {
            throw MalformedValue(advice: "write a path that starts with /, such as /apple/notifications")
        }
        return text
    }

    /// A libpq URI or keyword string, by its outer form only: libpq parses it when it connects.
    static func conninfo(_ text: String) throws(MalformedValue) -> String {
        let isURI = text.hasPrefix("postgres://") || text.hasPrefix("postgresql://")
        // The value of a keyword may contain what looks like the start of a URI.
        let beforeScheme = text.firstRange(of: "://").map { text[..<$0.lowerBound] } ?? text[...]
        guard isURI || beforeScheme.contains("=") else {
            throw MalformedValue(
                advice: "write a libpq URI such as postgres://siwad@localhost/siwa, or host=… dbname=…"
            )
        }
        return try line(text)
    }

    static func line(_ text: String) throws(MalformedValue) -> String {
        guard !text.isEmpty, text.utf8.allSatisfy({ $0 >= 0x20 && $0 != 0x7f }) else {
            throw MalformedValue(advice: "write one line of text")
        }
        return text
    }

    /// `http://host:port`; without a port, it is 80.
    ///
    /// - Throws: one advice for all errors, with `plainAdvice`: the text may hold a password, also where it is no URL.
    static func proxy(_ text: String) throws(MalformedValue) -> String {
        let advice = "write http://host:port, without a user and a path"
        let malformed = MalformedValue(advice: advice, plainAdvice: advice)
        var place = text[...]
        if place.last == "/" { place.removeLast() }
        guard place.hasPrefix("http://") else { throw malformed }
        place = place.dropFirst("http://".count)
        let hasPort = place.last != "]" && place.contains(":")
        // Its advice is for an address to listen on.
        guard let proxy = try? HostAndPort(parsing: hasPort ? String(place) : "\(place):80"), proxy.port > 0 else {
            throw malformed
        }
        return text
    }

    /// Removes a whole number and its unit from the start of `rest`; nil if they are malformed or too large.
    private static func amount(from rest: inout Substring, _ units: [Substring: Int64]) -> Int64? {
        let digits = rest.prefix(while: isDigit)
        let unit = rest[digits.endIndex...].prefix { !isDigit($0) }
        rest = rest[unit.endIndex...]
        guard let number = Int64(digits), let factor = units[unit] else { return nil }
        let (product, overflow) = number.multipliedReportingOverflow(by: factor)
        return overflow ? nil : product
    }

    private static func isDigit(_ character: Character) -> Bool {
        character.isASCII && character.isWholeNumber
    }
}

extension Duration {
    /// Parses a duration as a setting is written: `1h`, `1h30m`, `2d`; nil for other text.
    package init?(short text: String) {
        // The caller names the accepted forms of its option.
        guard let duration = try? ValueParser.duration(text, in: .zero...century) else { return nil }
        self = duration
    }

    /// As a setting is written, in the largest unit that divides it: `5m`, `400d`, `500ms`.
    package var short: String {
        let parts = components
        let milliseconds = parts.seconds * 1_000 + parts.attoseconds / 1_000_000_000_000_000
        for (unit, name) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")] as [(Int64, String)]
        where milliseconds != 0 && milliseconds.isMultiple(of: unit) {
            return "\(milliseconds / unit)\(name)"
        }
        return milliseconds == 0 ? "0s" : "\(milliseconds)ms"
    }
}

/// A host and a port to listen on: `127.0.0.1:8080`, `[::1]:8080`, `0.0.0.0:443`. With port 0, the system chooses one.
package struct HostAndPort: Sendable, Hashable, CustomStringConvertible {
    /// A host name or an address, without brackets.
    package let host: String
    package let port: Int

    package init(host: String, port: Int) {
        self.host = host
        self.port = port
    }

    init(parsing text: String) throws(MalformedValue) {
        let malformed = MalformedValue(advice: "write host:port, such as 127.0.0.1:8080 or [::1]:8080")
        guard let colon = text.lastIndex(of: ":") else { throw malformed }
        let digits = text[colon...].dropFirst()
        guard digits.utf8.count <= 5, let port = try? ValueParser.integer(String(digits), in: 0...65_535) else {
            throw MalformedValue(advice: "the port must be a number from 0 to 65535, as in 127.0.0.1:8080")
        }
        var host = text[..<colon]
        if host.first == "[", host.last == "]" {
            host = host.dropFirst().dropLast()
            guard host.contains(":") else { throw malformed }
        } else if host.contains(":") {
            throw MalformedValue(advice: "write an IPv6 address in brackets, such as [::1]:8080")
        }
        let isHost = host.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || ".-_:%".contains($0)) }
        guard !host.isEmpty, isHost else { throw malformed }
        self.init(host: String(host), port: port)
    }

    package var description: String { host.contains(":") ? "[\(host)]:\(port)" : "\(host):\(port)" }
}

/// Where the application endpoint listens.
package enum ApplicationAddress: Sendable, Hashable {
    /// An absolute path.
    case unix(String)
    case tcp(HostAndPort)

    init(parsing text: String) throws(MalformedValue) {
        guard text.hasPrefix("unix:") else {
            self = .tcp(try HostAndPort(parsing: text))
            return
        }
        let path = try ValueParser.line(String(text.dropFirst("unix:".count)))
        // The end of sockaddr_un.sun_path is a NUL (unix(7)).
        guard path.hasPrefix("/"), 2...107 ~= path.utf8.count else {
            throw MalformedValue(advice: "write unix: and an absolute path of at most 107 bytes, or host:port")
        }
        self = .unix(path)
    }
}

extension HostAndPort {
    package var isLoopback: Bool { IPAddress.isLoopback(host: host) }
}

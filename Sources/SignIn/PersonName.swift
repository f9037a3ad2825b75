import Basics
import JOSE
@_spi(_Unicode) import Swift

/// The name that Apple passes to the app once, unsigned, together with the identity token: the person or the device may have
/// written anything into it.
package struct PersonName: Sendable, Equatable {
    /// At most 100 Unicode scalars in NFC, without control and bidirectional formatting characters.
    package let given: String?
    package let family: String?

    /// nil if nothing is left of both parts.
    package init?(given: String?, family: String?) {
        self.given = given.flatMap(Self.cleaned)
        self.family = family.flatMap(Self.cleaned)
        guard self.given != nil || self.family != nil else { return nil }
    }

    /// Reads Apple's object `{"name":{"firstName":…,"lastName":…}}`, or `{"given_name":…,"family_name":…}`. Everything else
    /// of it is ignored, also its address, which is not verified.
    init?(_ user: JSONValue) {
        let name = user["name"]
        self.init(
            given: name?["firstName"]?.string ?? user["given_name"]?.string,
            family: name?["lastName"]?.string ?? user["family_name"]?.string
        )
    }

    static let longest = 100

    private static func cleaned(_ text: String) -> String? {
        var kept = String.UnicodeScalarView()
        for scalar in text.unicodeScalars {
            if scalar.properties.isWhitespace {
                kept.append(" ")
            } else if !scalar.isControl {
                kept.append(scalar)
            }
        }
        // The view of the standard library, because Foundation would double the size of the program.
        let composed = String(String.UnicodeScalarView(String(kept)._nfc.prefix(longest)))
        let trimmed = composed.trimmed { $0 == " " }
        return trimmed.isEmpty ? nil : String(trimmed)
    }
}

extension Unicode.Scalar {
    fileprivate var isControl: Bool {
        properties.generalCategory == .control || properties.isBidiControl
    }
}

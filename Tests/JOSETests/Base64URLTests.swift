import JOSE
import Testing

@Suite struct Base64URLTests {
    private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    @Test("Encoding and decoding agree for every length and byte.")
    func roundTrip() throws {
        for length in 0...130 {
            let bytes = (0..<length).map { UInt8(truncatingIfNeeded: $0 &* 37 &+ length &* 91) }
            #expect(try Base64URL.decode(Base64URL.encode(bytes)) == bytes)
        }
        let all = (0...255).map { UInt8($0) }
        #expect(try Base64URL.decode(Base64URL.encode(all)) == all)
    }

    @Test(
        "The test vectors of RFC 4648 hold, without their padding.",
        arguments: [
            ("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ]
    )
    func standardVectors(plain: String, encoded: String) throws {
        #expect(Base64URL.encode(Array(plain.utf8)) == encoded)
        #expect(try Base64URL.decode(encoded) == Array(plain.utf8))
    }

    @Test("Each byte has one spelling of two characters, each pair of bytes one of three.")
    func canonicalTails() {
        var spellings: [[UInt8]: Int] = [:]
        for first in Self.alphabet {
            for second in Self.alphabet {
                if let bytes = decode([first, second]) { spellings[bytes, default: 0] += 1 }
            }
        }
        #expect(spellings.count == 256)
        #expect(spellings.values.allSatisfy { $0 == 1 })
        for third in Self.alphabet {
            let isCanonical = (Self.alphabet.firstIndex(of: third) ?? 1) % 4 == 0
            #expect((decode([0x41, 0x41, third]) != nil) == isCanonical)
        }
    }

    @Test("A character outside the alphabet is refused at every place of every length.")
    func foreignCharacters() {
        let foreign = (0...255).map { UInt8($0) }.filter { !Self.alphabet.contains($0) }
        for length in 1...40 where length % 4 != 1 {
            let text = [UInt8](repeating: UInt8(ascii: "A"), count: length)
            #expect(decode(text) != nil)
            for place in 0..<length {
                for character in foreign {
                    var changed = text
                    changed[place] = character
                    #expect(decode(changed) == nil)
                }
            }
        }
    }

    @Test(
        "Padding, whitespace, plain base64 and impossible lengths are refused.",
        arguments: ["Zg==", "Zm8=", "Zg=", "=", "Zm9v\n", " Zm9v", "Zm 9v", "Zm9v====", "Z", "Zm9vY", "+_-/", "Zm9v\0"]
    )
    func otherSpellings(text: String) {
        #expect(throws: JOSEError.self) { try Base64URL.decode(text) }
    }

    private func decode(_ text: [UInt8]) -> [UInt8]? {
        do throws(JOSEError) {
            return try Base64URL.decode(text.span)
        } catch {
            return nil
        }
    }
}

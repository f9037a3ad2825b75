/// Eight bytes looked at together.
extension Span<UInt8> {
    /// The eight bytes from `index` on, the first one lowest.
    func word(at index: Int) -> UInt64 {
        // The load checks its bounds, and any eight bytes are a UInt64.
        UInt64(littleEndian: unsafe bytes.unsafeLoadUnaligned(fromByteOffset: index, as: UInt64.self))
    }

    /// The first place of `byte` from `start` on.
    func firstIndex(of byte: UInt8, from start: Int) -> Int? {
        var index = start
        while index <= count - 8 {
            let marks = word(at: index).bytes(equalTo: byte)
            if marks != 0 { return index + marks.trailingZeroBitCount / 8 }
            index += 8
        }
        while index < count {
            if self[index] == byte { return index }
            index += 1
        }
        return nil
    }
}

/// Marks the highest bit of each byte that is looked for. The lowest mark is exact; above it a borrow may leave wrong ones.
extension UInt64 {
    private static let ones: UInt64 = 0x0101_0101_0101_0101
    private static let highs: UInt64 = 0x8080_8080_8080_8080

    var bytesBeyondASCII: UInt64 { self & Self.highs }

    var bytesBelowSpace: UInt64 { (self &- Self.ones &* 0x20) & ~self & Self.highs }

    func bytes(equalTo byte: UInt8) -> UInt64 {
        let difference = self ^ (Self.ones &* UInt64(byte))
        return (difference &- Self.ones) & ~difference & Self.highs
    }
}

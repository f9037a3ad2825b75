import Glibc

/// The values for `$1`, `$2` … of a ``Statement``, in order, in PostgreSQL's binary form.
///
/// One buffer holds all values, so that appending neither allocates per value nor copies twice. A text with a NUL, which
/// PostgreSQL cannot store, is refused at execution, before anything is sent.
package struct Binds: Sendable {
    struct Value: Sendable {
        var type: UInt32
        /// In the buffer.
        var offset: Int
        /// In bytes; -1 is NULL.
        var length: Int
    }

    /// Begins with one byte that no value uses, so that an empty value has an address too: null means NULL to libpq.
    private(set) var buffer: [UInt8] = [0]
    private(set) var values: [Value] = []
    /// The first parameter, counted from 1, that contains a NUL.
    private(set) var firstWithNUL: Int?

    package init<each Element: PostgresValue>(_ values: repeat each Element) {
        repeat append(each values)
    }

    package init(_ build: (inout Binds) -> Void) {
        build(&self)
    }

    package var count: Int { values.count }

    package mutating func reserveCapacity(bytes: Int) {
        buffer.reserveCapacity(bytes)
    }
}

extension Binds {
    package mutating func append<Element: PostgresValue>(_ value: Element) {
        let offset = buffer.count
        value.write(to: &self)
        let length = value.isNull ? -1 : buffer.count - offset
        values.append(Value(type: Element.type.id, offset: offset, length: length))
    }

    package mutating func append<Element: PostgresValue>(array: [Element?]) {
        appendArray(array.count) { array[$0] }
    }

    // The following functions read the elements of an array in place, so that the caller needs no array.

    package mutating func appendTexts(_ count: Int, _ element: (Int) -> String?) {
        appendArray(count, element)
    }

    /// Appends a `text[]`, with its elements given as UTF-8.
    package mutating func appendTextBytes(_ count: Int, _ element: (Int) -> [UInt8]?) {
        appendArray(count) { element($0).map(UTF8Text.init(rawValue:)) }
    }

    package mutating func appendBytes(_ count: Int, _ element: (Int) -> [UInt8]?) {
        appendArray(count, element)
    }

    package mutating func appendBools(_ count: Int, _ element: (Int) -> Bool?) {
        appendArray(count, element)
    }

    package mutating func appendTimestamps(_ count: Int, _ element: (Int) -> Timestamp?) {
        appendArray(count, element)
    }

    /// Appends one parameter that is an array of `count` elements; a nil element is NULL.
    ///
    /// This is the format of `array_recv`: number of dimensions, whether there are NULLs, and element type; the length and
    /// lower bound of the only dimension; then each element after its length.
    private mutating func appendArray<Element: PostgresValue>(_ count: Int, _ element: (Int) -> Element?) {
        let offset = buffer.count
        writeInteger(Int32(count == 0 ? 0 : 1))
        let nullFlag = buffer.count
        writeInteger(Int32(0))
        writeInteger(Element.type.id)
        if count > 0 {
            writeInteger(Int32(clamping: count))
            writeInteger(Int32(1))
        }
        for index in 0..<count {
            let lengthOffset = buffer.count
            writeInteger(Int32(-1))
            if let value = element(index) {
                value.write(to: &self)
                setInteger(Int32(clamping: buffer.count - lengthOffset - 4), at: lengthOffset)
            } else {
                setInteger(Int32(1), at: nullFlag)
            }
        }
        values.append(Value(type: Element.type.array, offset: offset, length: buffer.count - offset))
    }
}

// MARK: - For the conformances to PostgresValue

extension Binds {
    mutating func writeBytes(_ bytes: [UInt8]) {
        buffer.append(contentsOf: bytes)
    }

    mutating func writeInteger<T: FixedWidthInteger>(_ value: T) {
        // The bytes of a local variable, which are copied.
        unsafe withUnsafeBytes(of: value.bigEndian) { unsafe buffer.append(contentsOf: $0) }
    }

    private mutating func setInteger(_ value: Int32, at offset: Int) {
        for byte in 0..<4 { buffer[offset + byte] = UInt8(truncatingIfNeeded: value >> (24 - 8 * byte)) }
    }

    /// Appends UTF-8, and marks this parameter if it contains a NUL.
    mutating func writeText(_ utf8: some Collection<UInt8>) {
        let start = buffer.count
        buffer.append(contentsOf: utf8)
        let count = buffer.count - start
        guard count > 0, firstWithNUL == nil else { return }
        // `memchr` reads exactly the bytes just appended.
        let containsNUL = unsafe buffer.withUnsafeBytes { bytes in
            guard let base = bytes.baseAddress else { return false }
            return unsafe memchr(base + start, 0, count) != nil
        }
        if containsNUL { firstWithNUL = values.count + 1 }
    }
}

/// Arrays, one parameter each. The forms with a closure read the elements where they are, a column of a batch say,
/// so that no array has to be made first.
extension Binds {
    /// Binds a `text[]`.
    package mutating func append(array: [String?]) {
        appendTexts(array.count) { array[$0] }
    }

    /// Binds a `text[]` by the UTF-8 of its elements.
    package mutating func append(textByteArrays array: [[UInt8]?]) {
        appendTextBytes(array.count) { array[$0] }
    }

    /// Binds a `bytea[]`.
    package mutating func append(byteArrays array: [[UInt8]?]) {
        appendBytes(array.count) { array[$0] }
    }

    /// Binds a `bigint[]`.
    package mutating func append(array: [Int64?]) {
        appendInt64s(array.count) { array[$0] }
    }

    /// Binds an `integer[]`.
    package mutating func append(array: [Int32?]) {
        appendInt32s(array.count) { array[$0] }
    }

    /// Binds a `boolean[]`.
    package mutating func append(array: [Bool?]) {
        appendBools(array.count) { array[$0] }
    }

    /// Binds a `timestamptz[]`.
    package mutating func append(array: [Timestamp?]) {
        appendTimestamps(array.count) { array[$0] }
    }

    /// Binds a `text[]` of `count` elements, the one at each index taken from `element`.
    package mutating func appendTexts(_ count: Int, _ element: (Int) -> String?) {
        appendArray(ServerType.textArray, of: ServerType.text, count: count) { binds, index in
            guard let text = element(index) else { return false }
            binds.writeElement(text)
            return true
        }
    }

    /// Binds a `text[]` of `count` elements by their UTF-8, the one at each index taken from `element`.
    package mutating func appendTextBytes(_ count: Int, _ element: (Int) -> [UInt8]?) {
        appendArray(ServerType.textArray, of: ServerType.text, count: count) { binds, index in
            guard let text = element(index) else { return false }
            binds.writeElement(text)
            return true
        }
    }

    /// Binds a `bytea[]` of `count` elements, the one at each index taken from `element`.
    package mutating func appendBytes(_ count: Int, _ element: (Int) -> [UInt8]?) {
        appendArray(ServerType.byteaArray, of: ServerType.bytea, count: count) { binds, index in
            guard let bytes = element(index) else { return false }
            binds.writeInteger(Int32(clamping: bytes.count))
            binds.writeBytes(bytes)
            return true
        }
    }

    /// Binds a `bigint[]` of `count` elements, the one at each index taken from `element`.
    package mutating func appendInt64s(_ count: Int, _ element: (Int) -> Int64?) {
        appendIntegers(ServerType.int8Array, of: ServerType.int8, count: count) { element($0) }
    }

    /// Binds an `integer[]` of `count` elements, the one at each index taken from `element`.
    package mutating func appendInt32s(_ count: Int, _ element: (Int) -> Int32?) {
        appendIntegers(ServerType.int4Array, of: ServerType.int4, count: count) { element($0) }
    }

    /// Binds a `boolean[]` of `count` elements, the one at each index taken from `element`.
    package mutating func appendBools(_ count: Int, _ element: (Int) -> Bool?) {
        appendIntegers(ServerType.boolArray, of: ServerType.bool, count: count) { index in
            element(index).map { UInt8($0 ? 1 : 0) }
        }
    }

    /// Binds a `timestamptz[]` of `count` elements, the one at each index taken from `element`.
    package mutating func appendTimestamps(_ count: Int, _ element: (Int) -> Timestamp?) {
        appendIntegers(ServerType.timestamptzArray, of: ServerType.timestamptz, count: count) { index in
            element(index)?.serverValue
        }
    }
}

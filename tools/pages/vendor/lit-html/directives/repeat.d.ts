export declare function repeat<T>(rows: Iterable<T>, key: (row: T, i: number) => unknown, view: (row: T, i: number) => unknown): object;

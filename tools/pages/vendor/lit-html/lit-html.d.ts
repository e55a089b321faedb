export declare function html(texts: TemplateStringsArray, ...values: unknown[]): object;
export declare function svg(texts: TemplateStringsArray, ...values: unknown[]): object;
export declare function render(value: unknown, into: Element): unknown;
export declare const nothing: any;

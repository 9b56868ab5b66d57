/** VitePress's theme in the fonts of the reader's system, so that nothing but pages is loaded. */
import theme from "vitepress/theme-without-fonts";
import "./style.css";

export default theme;

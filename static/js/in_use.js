/**
 * Whether somebody is at work in an element: the focus is there, words of it are selected, or one of its forms waits
 * for an answer to its question.
 */
export function isInUse(element) {
  if (element.querySelector("form[data-asking]")) return true;
  const selection = document.getSelection();
  const selected = selection && !selection.isCollapsed && element.contains(selection.anchorNode);
  const focus = document.activeElement;
  return selected || (focus !== null && focus !== document.body && element.contains(focus));
}
